-- Trained bundles, and the platforms that were measured with the boards that stood for them.

CREATE TABLE bundles (
    seq BIGINT NOT NULL,
    platform VARCHAR NOT NULL,
    version VARCHAR NOT NULL,
    path VARCHAR NOT NULL,
    created_at_s DOUBLE NOT NULL,      -- Unix time
    provenance VARCHAR NOT NULL,       -- JSON object
    UNIQUE (platform, version)
);

CREATE VIEW platforms AS
SELECT
    platform,
    fingerprint,
    board_id,
    count(*) AS measurements,
    count(*) FILTER (WHERE ok) AS good,
    min(measured_at_s) AS first_measured_at_s,
    max(measured_at_s) AS last_measured_at_s
FROM measurements
GROUP BY platform, fingerprint, board_id;
