-- What an inference costs by a power rail of the board; NULL and '' where that was not measured.
-- The view is made anew around the change: it reads the table that is altered.

DROP VIEW platforms;

ALTER TABLE measurements ADD COLUMN energy_mj DOUBLE;
ALTER TABLE measurements ADD COLUMN energy_gross_mj DOUBLE;
ALTER TABLE measurements ADD COLUMN energy_spread_mj DOUBLE;
ALTER TABLE measurements ADD COLUMN idle_mw DOUBLE;
ALTER TABLE measurements ADD COLUMN energy_source VARCHAR DEFAULT '';

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
