-- Memory of an accelerator, apart from that of the host. Rows from before do not know it: 0. The view
-- is made anew around the change, because it reads the table that is altered.

DROP VIEW platforms;

ALTER TABLE measurements ADD COLUMN device_memory_bytes UBIGINT DEFAULT 0;
ALTER TABLE foreign_measurements ADD COLUMN device_memory_bytes UBIGINT DEFAULT 0;
ALTER TABLE staged_measurements ADD COLUMN device_memory_bytes UBIGINT DEFAULT 0;

CREATE VIEW platforms AS
SELECT
    platform,
    fingerprint,
    board_id,
    count(*) AS measurements,
    count(*) FILTER (WHERE ok) AS good,
    min(CASE WHEN received_at_s > 0 THEN received_at_s ELSE measured_at_s END)
        AS first_measured_at_s,
    max(CASE WHEN received_at_s > 0 THEN received_at_s ELSE measured_at_s END)
        AS last_measured_at_s
FROM measurements
GROUP BY platform, fingerprint, board_id;
