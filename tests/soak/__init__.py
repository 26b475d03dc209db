"""An hour of kills, S3 faults and outages of disks on the real command line: `make soak`."""
