#!/bin/sh
# Soft-RoCE devices rxe0 and rxe1 (198.18.0.1, 198.18.0.2) on the ends vr0 and vr1 of a wire. Soft-RoCE
# works in the first network namespace only, so both ends are there. RoCE, being UDP, takes the wire
# all the same; TCP takes the loopback, as a second network between the hosts.
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
for scope in all default; do
  for setting in rp_filter=0 accept_local=1 arp_ignore=1 arp_announce=2; do
    echo ${setting#*=} >/proc/sys/net/ipv4/conf/$scope/${setting%=*}
  done
done
ip link add vr0 mtu 4500 type veth peer name vr1 mtu 4500
for end in 0 1; do
  ip addr add 198.18.0.$((end + 1))/24 dev vr$end
  ip link set vr$end up
done
for end in 0 1; do  # nobody answers requests for an address of one's own
  for other in 0 1; do
    ip neigh replace 198.18.0.$((other + 1)) dev vr$end nud permanent \
      lladdr $(cat /sys/class/net/vr$other/address)
  done
done
# What is sent takes the wire, also to an address that is ours; what arrives is ours.
ip rule add pref 1 to 127.0.0.0/8 lookup local
ip rule add pref 2 ipproto tcp lookup local
for end in 0 1; do ip rule add pref 10 iif vr$end lookup local; done
ip rule del pref 0
ip rule add pref 20 from all to 198.18.0.0/15 lookup main
ip rule add pref 30 from all lookup local
for end in 0 1; do
  rdma link add rxe$end type rxe netdev vr$end
  # Counts what RoCE, UDP to port 4791, sends.
  tc qdisc add dev vr$end clsact
  tc filter add dev vr$end egress protocol ip pref 1 u32 \
    match ip protocol 17 0xff match ip dport 4791 0xffff action pass
done
mkdir -p /dev/infiniband
