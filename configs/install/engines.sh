#!/usr/bin/env bash
# engines.sh PYTHON DIRECTORY: engines that read Iceberg, for `make test-engines`, each in an environment of its own.
set -euo pipefail
python=$1 place=$2
repository=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$place/jars"

environment() { # NAME PACKAGE…
  local name=$1; shift
  [ -e "$place/$name/.done" ] && return
  "$python" -m venv "$place/$name"
  "$place/$name/bin/python" -m pip install -q --disable-pip-version-check "$@"
  touch "$place/$name/.done"
}

environment duckdb duckdb==1.5.5 duckdb-extensions duckdb-extension-iceberg==1.5.5 duckdb-extension-avro==1.5.5 pytz \
  polars==2.1.0 pyiceberg==0.12.0 pyarrow
environment clickhouse chdb-core==26.9.0 pyarrow pandas
environment spark pyspark==3.5.9 snowpark-connect-deps-iceberg==1.0.3 setuptools

packages=$("$place/spark/bin/python" -c 'import pyspark, os; print(os.path.dirname(os.path.dirname(pyspark.__file__)))')
if [ ! -e "$place/jars/jackson.jar" ]; then
  cp "$packages"/snowpark_connect_deps_iceberg/jars/iceberg-spark-runtime-3.5_2.12-*.jar "$place/jars/"
  "$python" "$repository/tests/engines/relocated_jackson.py" "$place/jars/jackson.jar" \
    "$packages"/pyspark/jars/jackson-{core,databind,annotations}-*.jar
fi
