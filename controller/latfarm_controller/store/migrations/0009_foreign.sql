-- Measurements of other farms, apart from this farm's own, so that nothing reads them unasked: what
-- they are and where they come from is told by `imports`. An import gathers its rows in the staged
-- tables, and moves all of them at once, so that it can be continued and is never half there.

CREATE TABLE foreign_measurements AS SELECT *, '' AS import_id FROM measurements WHERE false;

CREATE TABLE imports (
    import_id VARCHAR PRIMARY KEY,     -- digest of the files and of how they were read
    kind VARCHAR NOT NULL,             -- the reader: latfarm, nnlqp, ...
    path VARCHAR NOT NULL,             -- where the files were
    source VARCHAR NOT NULL,           -- who measured
    licence VARCHAR NOT NULL,
    method VARCHAR NOT NULL,           -- how it was measured
    own BOOLEAN NOT NULL,              -- rows of this farm's own boards, which came back
    state VARCHAR NOT NULL,            -- running | done
    told BIGINT NOT NULL,              -- rows in the files
    added BIGINT NOT NULL,
    known BIGINT NOT NULL,             -- rows that were here already
    refused BIGINT NOT NULL,           -- rows that are none, or that have no graph
    at_s DOUBLE NOT NULL               -- Unix time
);

CREATE TABLE staged_measurements AS
    SELECT *, '' AS import_id, 0::BIGINT AS line FROM measurements WHERE false;
CREATE TABLE staged_graphs AS SELECT *, '' AS import_id FROM graphs WHERE false;

-- How many transactions were committed. The same number stands in a file beside the database; where
-- that is higher, the database has lost some (`commit_mark.py`).
CREATE TABLE commits (number BIGINT NOT NULL);
INSERT INTO commits VALUES (0);

CREATE TABLE losses (
    at_s DOUBLE NOT NULL,              -- Unix time when it was noticed
    commits BIGINT NOT NULL,           -- how many transactions are missing
    story VARCHAR NOT NULL
);
