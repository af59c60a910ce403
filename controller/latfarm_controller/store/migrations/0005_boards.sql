-- What was decided about boards, and which measurements were put aside because of it.

CREATE TABLE board_events (
    seq BIGINT NOT NULL,               -- order of telling
    board VARCHAR NOT NULL,            -- its name in the inventory
    board_id VARCHAR NOT NULL,         -- '' where it was never reached
    event VARCHAR NOT NULL,            -- drained | quarantined | resumed | check_failed
    reason VARCHAR NOT NULL,
    actor VARCHAR NOT NULL,            -- who: a certificate's name, local, or cusum
    at_s DOUBLE NOT NULL,              -- Unix time
    details VARCHAR NOT NULL           -- JSON object
);

CREATE TABLE put_aside (
    seq BIGINT PRIMARY KEY,            -- of the measurement
    reason VARCHAR NOT NULL,
    at_s DOUBLE NOT NULL               -- Unix time
);
