package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// healthTimeout is longer than /readyz takes, and shorter than an orchestrator waits.
const healthTimeout = 4 * time.Second

// runHealth asks the process on this machine whether it lives or, with "ready", has all that it needs: the worker where
// it has an address, else the API. It is for images, which hold no other program that could ask.
func runHealth(ctx context.Context, cfg config, args []string) error {
	path := "/healthz"
	switch {
	case len(args) == 1 && args[0] == "ready":
		path = "/readyz"
	case len(args) > 0:
		return fmt.Errorf("bobbin health takes nothing, or ready, got %q", args)
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+here(cmp.Or(cfg.WorkerAddr, cfg.Addr))+path, nil)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	resp, err := (&http.Transport{}).RoundTrip(req) // no proxy, and no redirects
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return errors.New(strings.TrimSpace(fmt.Sprintf("%s says %d %s", path, resp.StatusCode, said)))
	}
	return nil
}

// here is the address by which a listener on addr is reached from the same machine. addr is host:port.
func here(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("localhost", port)
	}
	return addr
}
