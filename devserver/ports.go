package main

import (
	"fmt"
	"net"
	"strconv"
)

// checkPorts says which port is taken while we can still say it: the servers
// below end the process without a word about flags.
func checkPorts(o *options) error {
	for _, p := range []struct {
		ip, flag string
		port     int
	}{{o.ip, "port", o.port}, {o.uiIP, "ui-port", o.uiPort}, {o.ip, "http-port", o.httpPort}} {
		if p.port == 0 {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(p.ip, strconv.Itoa(p.port)))
		if err != nil {
			return fmt.Errorf("port %d of %s is in use or not allowed; choose another with -%s: %w", p.port, p.ip, p.flag, err)
		}
		l.Close()
	}
	return nil
}

// freePorts finds n different ports that nobody listens on now.
func freePorts(ip string, n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // only at the end, so that no port comes twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
