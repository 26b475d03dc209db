"""What some disks add to the contract of `disks.base`. `disks.kinds.as_disk` asks for it, also through wrappers."""
