"""What the scripts that measure ttvm share. Not meant to be run."""
