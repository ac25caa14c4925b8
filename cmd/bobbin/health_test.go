package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHealthSaysWhatTheProcessSays(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			http.Error(w, `{"missing": ["Temporal does not answer"]}`, http.StatusServiceUnavailable)
		}
	}))
	cfg := config{Addr: strings.TrimPrefix(srv.URL, "http://")}
	require.NoError(t, runHealth(t.Context(), cfg, nil))
	require.NoError(t, runHealth(t.Context(), config{Addr: "127.0.0.1:1", WorkerAddr: cfg.Addr}, nil))
	require.EqualError(t, runHealth(t.Context(), cfg, []string{"ready"}), `/readyz says 503 {"missing": ["Temporal does not answer"]}`)
	require.ErrorContains(t, runHealth(t.Context(), cfg, []string{"steady"}), "ready")
	srv.Close()
	require.ErrorContains(t, runHealth(t.Context(), cfg, nil), "refused")
}

func TestAListenerOnEveryAddressIsAskedOnThisMachine(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"0.0.0.0:80": "localhost:80", ":80": "localhost:80", "[::]:80": "localhost:80", "127.0.0.1:80": "127.0.0.1:80",
		"10.0.0.7:80": "10.0.0.7:80", "box:80": "box:80",
	} {
		require.Equal(t, want, here(addr), addr)
	}
}
