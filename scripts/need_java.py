"""Say which Java Spark will run on, or in one line what to do when there is none.

Run by the Python of the project's environment.
"""

import sys

from rocketstream.errors import ConfigurationError
from rocketstream.spark.setup.preparation import find_java

if __name__ == "__main__":
    try:
        sys.stdout.write(f"Spark runs on {find_java()}\n")
    except ConfigurationError as error:
        sys.exit(f"error: {error.message}")
