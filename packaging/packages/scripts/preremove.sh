#!/bin/sh
# Stops the services before their program goes: dpkg says remove, rpm says how many versions stay. An upgrade
# stops nothing.
set -e
case "${1:-}" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -n "${DPKG_ROOT:-}" ] || [ ! -d /run/systemd/system ]; then
	exit 0
fi
systemctl stop millrace.service 'millrace@*.service' || true
systemctl --quiet disable millrace.service || true
for unit in /etc/systemd/system/multi-user.target.wants/millrace@*.service; do
	if [ -L "$unit" ]; then
		systemctl --quiet disable "${unit##*/}" || true
	fi
done
