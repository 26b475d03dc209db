#!/usr/bin/env bash
# A single-node Ceph with RadosGW (S3) on loopback, for tests and demos. Debian or Ubuntu, no systemd, no root to run.
#
#   ceph.sh install           install the packages with apt (as root or through sudo)
#   ceph.sh run DIR PORT      start a cluster that lives in DIR, S3 on 127.0.0.1:PORT, in the foreground
#
# TERM or Ctrl-C stops all its daemons. A DIR that holds a cluster already is started again.
#   CEPH_STORE=memstore|bluestore (default memstore: objects in memory, gone at the end)
#   CEPH_ACCESS_KEY, CEPH_SECRET_KEY: the S3 user to create
set -euo pipefail

packages="radosgw ceph-mon ceph-osd"

say() { echo "ceph: $*" >&2; }

installed() {
  local program
  for program in radosgw radosgw-admin ceph-mon ceph-osd ceph monmaptool; do command -v $program >/dev/null || return 1; done
}

install_packages() {
  if installed; then return; fi
  if ! command -v apt-get >/dev/null; then
    say "needs Debian or Ubuntu packages ($packages); install them with your own package tool"
    exit 1
  fi
  local sudo=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { say "please run as root: apt-get install --no-install-recommends $packages"; exit 1; }
    sudo=sudo
  fi
  say "installing $packages (about 270 MB) …"
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086
  $sudo apt-get install -y -q --no-install-recommends $packages >/dev/null ||
    { $sudo apt-get update -q >/dev/null && $sudo apt-get install -y -q --no-install-recommends $packages >/dev/null; } ||
    { say "apt-get could not install: $packages"; exit 1; }
}

free_port() { # a port nobody listens on; the daemons say so if somebody was faster
  local port
  while :; do
    port=$((20000 + RANDOM % 12000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

write_configuration() {
  local store=${CEPH_STORE:-memstore} mon_port
  mon_port=$(free_port)
  # One copy of everything, no authentication inside the cluster, elections and proposals without their usual patience.
  cat >"$directory/ceph.conf" <<CONFIGURATION
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon host = [v2:127.0.0.1:$mon_port]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv6 = false
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
ms mon service mode = crc
ms mon cluster mode = crc
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
rgw rados pool pg num min = 4
mon allow pool size one = true
mon max pg per osd = 1000
osd crush chooseleaf type = 0
run dir = $directory
log file = $directory/\$name.log
log to stderr = false
admin socket =
pid file =
debug osd = 0
debug mon = 0
debug bluestore = 0
debug rocksdb = 0
debug rgw = 0
debug ms = 0
[mon]
mon data = $directory/mon
paxos propose interval = 0.02
paxos min wait = 0.01
mon election timeout = 1
mon osd crush smoke test = false
[osd]
osd data = $directory/osd
osd objectstore = $store
bluestore block size = 21474836480
bluestore block create = true
memstore device bytes = 4294967296
osd max object name len = 2048
osd memory target = 939524096
[client.rgw.a]
rgw data = $directory/rgw
rgw thread pool size = 64
rgw enable usage log = false
rgw enable ops log = false
rgw dynamic resharding = false
rgw override bucket index max shards = 4
rgw run sync thread = false
rgw s3 auth use keystone = false
CONFIGURATION
}

daemons=()
daemon() {
  "$@" -c "$directory/ceph.conf" -f </dev/null >>"$directory/daemons.log" 2>&1 &
  daemons+=($!)
}

stop_daemons() {
  trap - EXIT INT TERM
  local pid
  for pid in "${daemons[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for _ in $(seq 30); do
    kill -0 "${daemons[@]}" 2>/dev/null || break
    sleep 0.1
  done
  for pid in "${daemons[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
}

run_cluster() {
  directory=$(mkdir -p "$1" && cd "$1" && pwd) port=$2
  installed ||
    { say "not installed; run: bash configs/install/ceph.sh install"; exit 1; }
  export CEPH_ARGS=""
  local new="" conf="$directory/ceph.conf" osd_uuid
  trap stop_daemons EXIT
  trap 'exit 143' TERM
  trap 'exit 130' INT

  if [ ! -f "$directory/complete" ]; then
    new=1
    rm -rf "$directory/mon" "$directory/osd" "$directory/rgw"
    mkdir -p "$directory/mon" "$directory/osd" "$directory/rgw"
    write_configuration
    local fsid address
    fsid=$(sed -n 's/^fsid = //p' "$conf") address=$(sed -n 's/^mon host = //p' "$conf")
    monmaptool --create --clobber --fsid "$fsid" --addv a "$address" "$directory/monmap" >/dev/null
    ceph-mon -c "$conf" --mkfs -i a --monmap "$directory/monmap" >>"$directory/daemons.log" 2>&1
  fi
  daemon ceph-mon -i a
  if [ -n "$new" ]; then
    osd_uuid=$(cat /proc/sys/kernel/random/uuid)
    ceph -c "$conf" osd new "$osd_uuid" 0 >>"$directory/daemons.log" 2>&1
    ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$osd_uuid" >>"$directory/daemons.log" 2>&1
  fi
  daemon ceph-osd -i 0
  if [ -n "$new" ]; then
    radosgw-admin -c "$conf" -n client.rgw.a user create --uid=frostline --display-name=frostline \
      --access-key="${CEPH_ACCESS_KEY:?}" --secret="${CEPH_SECRET_KEY:?}" >>"$directory/daemons.log" 2>&1
    # Memory forgets, so only a cluster on disk can be started again.
    [ "${CEPH_STORE:-memstore}" = memstore ] || touch "$directory/complete"
  fi
  daemon radosgw -n client.rgw.a --rgw-frontends="beast endpoint=127.0.0.1:$port"
  say "S3 on http://127.0.0.1:$port once it answers"
  wait -n "${daemons[@]}" || true
  say "a daemon ended; last lines of its log:"
  tail -n 5 "$directory/daemons.log" >&2
  exit 1
}

case "${1:-}" in
  install) install_packages ;;
  run) [ $# = 3 ] || { say "usage: ceph.sh run DIR PORT"; exit 2; }; run_cluster "$2" "$3" ;;
  *) say "usage: ceph.sh install | ceph.sh run DIR PORT"; exit 2 ;;
esac
