#!/bin/sh
# Two RoCE networks that Ethernet joins. Soft-RoCE devices rxe0 and rxe1 (198.18.0.1, 198.18.0.2) are
# on the ends vr0 and vr1 of one wire, rxe2 and rxe3 (198.18.1.1, 198.18.1.2) on those of another.
# en0 to en3 (198.18.2.1 to 198.18.2.4) are plain Ethernet. Soft-RoCE works in the first network
# namespace only, so all devices are there. RoCE packets are UDP, and take their wire nevertheless. No
# wire joins the two networks. TCP takes the loopback, as another network between the hosts.
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
for scope in all default; do
  for setting in rp_filter=0 accept_local=1 arp_ignore=1 arp_announce=2; do
    echo ${setting#*=} >/proc/sys/net/ipv4/conf/$scope/${setting%=*}
  done
done
for wire in 0 1; do
  first=$((2 * wire)) second=$((2 * wire + 1))
  ip link add vr$first mtu 4500 type veth peer name vr$second mtu 4500
  ip addr add 198.18.$wire.1/24 dev vr$first
  ip addr add 198.18.$wire.2/24 dev vr$second
  ip link set vr$first up
  ip link set vr$second up
  # No interface answers ARP requests for a local address, so neighbours are fixed.
  for end in $first $second; do
    ip neigh replace 198.18.$wire.1 dev vr$end nud permanent \
      lladdr $(cat /sys/class/net/vr$first/address)
    ip neigh replace 198.18.$wire.2 dev vr$end nud permanent \
      lladdr $(cat /sys/class/net/vr$second/address)
  done
  ip link add en$first type veth peer name en$second
  for end in $first $second; do
    ip addr add 198.18.2.$((end + 1))/24 dev en$end
    ip link set en$end up
  done
done
# Sent packets take the wire, also to a local address. Arriving packets are local.
ip rule add pref 1 to 127.0.0.0/8 lookup local
ip rule add pref 2 ipproto tcp lookup local
for end in 0 1 2 3; do ip rule add pref 10 iif vr$end lookup local; done
ip rule del pref 0
ip rule add pref 20 from all to 198.18.0.0/15 lookup main
ip rule add pref 30 from all lookup local
for end in 0 1 2 3; do
  rdma link add rxe$end type rxe netdev vr$end
  # Counts the sent packets of RoCE, UDP to port 4791.
  tc qdisc add dev vr$end clsact
  tc filter add dev vr$end egress protocol ip pref 1 u32 \
    match ip protocol 17 0xff match ip dport 4791 0xffff action pass
done
mkdir -p /dev/infiniband
