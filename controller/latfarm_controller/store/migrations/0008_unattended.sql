-- Campaigns that go on by themselves, and finished results that boards kept for a controller that was
-- killed: they wait here until a campaign asks for them.

ALTER TABLE campaigns ADD COLUMN waiting_for VARCHAR DEFAULT '';
ALTER TABLE campaigns ADD COLUMN unattended BOOLEAN DEFAULT false;

CREATE TABLE found_results (
    seq BIGINT NOT NULL,               -- order of finding
    request_id VARCHAR NOT NULL,
    board_id VARCHAR NOT NULL,
    platform VARCHAR NOT NULL,
    fingerprint VARCHAR NOT NULL,
    received_at_s DOUBLE NOT NULL,     -- Unix time
    payload BLOB NOT NULL              -- the message of the board
);
