"""The common modules of the scripts that measure ttvm. These modules are not meant to be run."""
