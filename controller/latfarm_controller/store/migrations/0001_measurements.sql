-- Model, platform and latency of NNLQP Fig. 4, extended: graphs, measurements, campaigns.
-- Structured fields are JSON text, so that a snapshot needs no nested types.

CREATE TABLE graphs (
    hash VARCHAR PRIMARY KEY,
    name VARCHAR NOT NULL,
    graph VARCHAR NOT NULL,            -- Graph as JSON
    ops INTEGER NOT NULL,
    macs BIGINT NOT NULL               -- multiply-adds of the whole graph
);

CREATE TABLE measurements (
    seq BIGINT NOT NULL,               -- order of telling
    campaign_id VARCHAR NOT NULL,
    request_id VARCHAR NOT NULL,
    graph_hash VARCHAR NOT NULL,
    platform VARCHAR NOT NULL,
    purpose VARCHAR NOT NULL,
    outcome VARCHAR NOT NULL,
    ok BOOLEAN NOT NULL,               -- there is a latency to use
    unstable BOOLEAN NOT NULL,
    board_id VARCHAR NOT NULL,
    fingerprint VARCHAR NOT NULL,
    error_code VARCHAR NOT NULL,
    error_message VARCHAR NOT NULL,
    latency_ms DOUBLE,
    mad_ms DOUBLE,
    min_ms DOUBLE,
    p90_ms DOUBLE,
    p99_ms DOUBLE,
    cold_ms DOUBLE,
    load_ms DOUBLE,
    compile_ms DOUBLE,
    first_run_ms DOUBLE,
    runs BIGINT NOT NULL,
    rejected_runs BIGINT NOT NULL,
    memory_bytes UBIGINT NOT NULL,
    board_ms DOUBLE NOT NULL,
    measured_at_s DOUBLE NOT NULL,     -- Unix time
    protocol_version INTEGER NOT NULL,
    tier VARCHAR NOT NULL,
    session_ms VARCHAR NOT NULL,       -- JSON list: the sessions' medians
    layers VARCHAR NOT NULL,           -- JSON list of layer times; [] unless profiled
    settings VARCHAR NOT NULL,         -- JSON object
    conditions VARCHAR NOT NULL,       -- JSON object
    UNIQUE (campaign_id, request_id)
);

CREATE TABLE campaigns (
    seq BIGINT NOT NULL,
    campaign_id VARCHAR PRIMARY KEY,
    name VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    platform VARCHAR NOT NULL,
    config VARCHAR NOT NULL,           -- JSON object
    state VARCHAR NOT NULL,
    stage VARCHAR NOT NULL,
    stage_done BIGINT NOT NULL,
    stage_total BIGINT NOT NULL,
    measurements BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    board_ms DOUBLE NOT NULL,
    wall_ms DOUBLE NOT NULL,
    started_at_s DOUBLE NOT NULL,
    finished_at_s DOUBLE NOT NULL,
    outcome VARCHAR NOT NULL,          -- JSON object
    error VARCHAR NOT NULL
);
