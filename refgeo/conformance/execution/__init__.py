"""Run somebody's code in its process: `host` calls it, `process` starts it, `drivers` run update rules."""
