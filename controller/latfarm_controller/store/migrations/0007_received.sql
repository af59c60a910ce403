-- When the controller received a measurement, by its own clock: what orders measurements. The clock
-- of a board may be wrong, so that an older row counts from when it says it was measured, but not
-- from the future. The view is made anew around the change: it reads the table that is altered.

DROP VIEW platforms;

ALTER TABLE measurements ADD COLUMN received_at_s DOUBLE DEFAULT 0;
UPDATE measurements SET received_at_s =
    CASE WHEN measured_at_s BETWEEN 0 AND epoch(now()) THEN measured_at_s
    WHEN measured_at_s < 0 THEN 0 ELSE epoch(now()) END;

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
