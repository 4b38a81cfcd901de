"""What is followed from commit to commit, by asv: times as ratios against the plain alternative in the same run.

In this folder's parent, with ``pip install asv virtualenv``:

- ``asv run main~20..main --steps 5`` measures five of twenty commits, each in an environment of its own;
- ``asv publish && asv preview`` draws every number against commits;
- ``asv run -E existing:python --quick`` tries this environment, and keeps nothing.
"""
