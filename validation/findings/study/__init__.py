"""Sharpness against generalisation over populations of models: training, measuring, one tidy table, statistics."""
