#!/bin/sh
# Install chromium and its driver, with which the page of `covey view` is tested, unless they are
# installed.
set -eu

if command -v chromium > /dev/null && command -v chromedriver > /dev/null; then
  exit 0
fi

root=
if [ "$(id -u)" != 0 ]; then
  root="sudo -n"
fi
if ! command -v apt-get > /dev/null || ! $root true 2> /dev/null; then
  echo "chromium and chromedriver are not installed, and apt-get cannot install them here." >&2
  echo "Install them so that both are in PATH (Debian: apt-get install chromium chromium-driver)." >&2
  exit 1
fi
$root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq chromium chromium-driver > /dev/null
