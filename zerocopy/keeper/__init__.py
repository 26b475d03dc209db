"""ZooKeeper behind one wrapper: multis that raise, deadlines, outcomes that are known. Nothing else imports kazoo."""
