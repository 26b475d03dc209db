#!/usr/bin/env bash
# A headless Java 17 or newer, which Spark runs on. Debian or Ubuntu; says what to do elsewhere.
#
#   java.sh install           install the package with apt (as root or through sudo) unless a good Java is there
set -euo pipefail

# Debian 12 and Ubuntu 22.04 have 17, Debian 13 has 21 and 25, Ubuntu 24.04 has 17 and 21.
packages="openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless default-jre-headless"

say() { echo "java: $*" >&2; }

installed() { # the Java that Spark would start: $JAVA_HOME's, else the one on the PATH
  local java=java version
  [ -z "${JAVA_HOME:-}" ] || java="$JAVA_HOME/bin/java"
  version=$("$java" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1) || return 1
  [ "${version:-0}" -ge 17 ]
}

install_package() {
  if installed; then return; fi
  if ! command -v apt-get >/dev/null; then
    say "needs Java 17 or newer; install a JRE with your own package tool, or set JAVA_HOME"
    exit 1
  fi
  local sudo="" package
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { say "please run as root: apt-get install --no-install-recommends ${packages%% *}"; exit 1; }
    sudo=sudo
  fi
  export DEBIAN_FRONTEND=noninteractive
  say "installing a headless JRE (about 200 MB) …"
  # Slim images lack the directory in which the package links its manual pages, and it fails without.
  $sudo mkdir -p /usr/share/man/man1
  # Once with the package lists as they are, once with new ones.
  for attempt in 1 2; do
    for package in $packages; do
      if $sudo apt-get install -y -q --no-install-recommends "$package" >/dev/null 2>&1 && installed; then return; fi
    done
    [ "$attempt" = 2 ] || $sudo apt-get update -q >/dev/null || true
  done
  say "apt-get could not install any of: $packages; install Java 17 or newer yourself, or set JAVA_HOME"
  exit 1
}

case "${1:-}" in
  install) install_package ;;
  *) say "usage: java.sh install"; exit 2 ;;
esac
