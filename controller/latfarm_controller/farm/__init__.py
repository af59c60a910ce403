"""The farm: runs measurement requests on boards.

```
driving/       runs one campaign: asks it, submits requests, stores the answers, tells it
supervision/   which boards may work: decisions of people, and drift of their sentinels
farm.py        requests come in, measurements go out; calls the scheduler and obeys it
processes/     where boards and builders run; the only importer of Ray
boards/        one worker for each board, in shards
scheduling/    decides which board measures what; pure, without input or output
```
"""
