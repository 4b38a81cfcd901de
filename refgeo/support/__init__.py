"""What everything stands on: arguments, errors, files, threads, imports."""
