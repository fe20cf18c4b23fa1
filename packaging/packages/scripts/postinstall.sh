#!/bin/sh
# systemd reads the units. Nothing is started and no running service is restarted: settings come first, and
# the time of a restart is the operator's choice.
set -e
if [ -n "${DPKG_ROOT:-}" ] || [ ! -d /run/systemd/system ]; then
	exit 0
fi
systemctl daemon-reload || true
if systemctl --quiet is-active millrace.service 'millrace@*.service'; then
	echo "millrace: the running service is still the version before; systemctl restart millrace ends that"
fi
