"""From a config file to Settings: Bash reads it, the layers fill in, everything wrong is said at once."""

from rolloutgen.config.load import load_config, log_folder, log_paths, repository, resolve_values

__all__ = ["load_config", "log_folder", "log_paths", "repository", "resolve_values"]
