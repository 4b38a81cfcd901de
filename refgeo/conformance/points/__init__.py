"""Make test points: features, covering design, random arrays, circumstances."""
