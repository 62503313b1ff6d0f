"""Backends: what turns a Cascade into something that runs. One interface, one file a target."""
