import os

if os.environ.get("FROSTLINE_TEST_WORM"):  # every process of the suite, children of crash tests among them
    from tests import worm

    worm.install()
