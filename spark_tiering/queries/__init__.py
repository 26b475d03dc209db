"""SQL of Spark over tables: what each scan needs is found out first, and nothing else is read.

May touch the Java side of a session, by py4j; leaves no setting and no view behind in it.
"""
