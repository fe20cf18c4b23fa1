#!/bin/sh
# systemd reads the units. Nothing is started and no running service is restarted: settings come first, and
# the time of a restart is the operator's choice.
set -e
if [ -n "${DPKG_ROOT:-}" ] || [ ! -d /run/systemd/system ]; then
	exit 0
fi
systemctl daemon-reload || true
running=$(systemctl list-units --plain --no-legend --state=active millrace.service 'millrace@*.service' | cut -d ' ' -f 1)
if [ -n "$running" ]; then
	echo "millrace: still the version before, until systemctl restart of each:" $running
fi
