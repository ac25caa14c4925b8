package tools

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
)

// errNotPublic keeps the address to itself: a name of the inner network leads to it.
var errNotPublic = errors.New("it leads to an address that is not on the public Internet")

// globalIPv6 is what IANA has given out as global unicast; all else in IPv6 (loopback, link-local, unique local,
// multicast, IPv4-mapped and IPv4-compatible, NAT64 64:ff9b::/96 and 64:ff9b:1::/48, metadata at fd00:ec2::254) lies
// outside. https://www.iana.org/assignments/ipv6-address-space
var globalIPv6 = netip.MustParsePrefix("2000::/3")

// notPublic are the other networks that are not, or need not be, on the public Internet:
// https://www.iana.org/assignments/iana-ipv4-special-registry and
// https://www.iana.org/assignments/iana-ipv6-special-registry, where not said otherwise.
var notPublic = prefixes(`
	0.0.0.0/8        this network
	10.0.0.0/8       private
	100.64.0.0/10    carrier-grade NAT, and metadata at Alibaba (100.100.100.200)
	127.0.0.0/8      loopback
	169.254.0.0/16   link-local, and metadata at most clouds (169.254.169.254)
	172.16.0.0/12    private
	192.0.0.0/24     protocol assignments, and metadata at Oracle (192.0.0.192)
	192.0.2.0/24     documentation
	192.88.99.0/24   6to4 relays
	192.168.0.0/16   private
	198.18.0.0/15    benchmarks
	198.51.100.0/24  documentation
	203.0.113.0/24   documentation
	224.0.0.0/4      multicast
	240.0.0.0/4      reserved, and broadcast
	168.63.129.16/32 metadata at Azure: https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
	2001::/23        protocol assignments, among them Teredo, which carries IPv4
	2001:db8::/32    documentation
	2002::/16        6to4, which carries IPv4
	3fff::/20        documentation
`)

// prefixes reads the first word of each line.
func prefixes(table string) (list []netip.Prefix) {
	for line := range strings.Lines(table) {
		if words := strings.Fields(line); len(words) > 0 {
			list = append(list, netip.MustParsePrefix(words[0]))
		}
	}
	return list
}

// public reports whether an address is on the public Internet. A NAT64 prefix of the network's own choice cannot be told
// from other addresses (https://www.rfc-editor.org/rfc/rfc6052#section-2.2).
func public(a netip.Addr) bool {
	if a.Zone() != "" || !(a.Is4() || globalIPv6.Contains(a)) {
		return false
	}
	return !within(notPublic, a)
}

func within(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// control refuses addresses that are neither public nor allowed. As a net.Dialer's ControlContext it sees each address
// just before it is dialled, after DNS, so that no second look-up can answer otherwise.
func control(allowed []netip.Prefix) func(context.Context, string, string, syscall.RawConn) error {
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil || !(public(ap.Addr()) || within(allowed, ap.Addr())) {
			return errNotPublic
		}
		return nil
	}
}
