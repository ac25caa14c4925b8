package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The tests change the environment, so none is parallel.

func clearConfig(t *testing.T) {
	for _, name := range []string{"DATABASE_URL", "TEMPORAL_ADDRESS", "OPENAI_API_KEY", "OPENAI_BASE_URL", "BOBBIN_ADDR"} {
		t.Setenv(name, "")
	}
}

func TestReadConfigNamesEverythingThatIsWrongAtOnce(t *testing.T) {
	clearConfig(t)
	t.Setenv("BOBBIN_ADDR", "nowhere")
	t.Setenv("BOBBIN_TAKE_TIMEOUT", "soon")
	t.Setenv("BOBBIN_TURN_MAX_ROUNDS", "0")
	t.Setenv("BOBBIN_WORKER_STINTS", "many")
	t.Setenv("BOBBIN_HISTORY_ROLL_OVER", "29")
	t.Setenv("BOBBIN_EVENT_RETENTION", "23h")
	t.Setenv("BOBBIN_KEY_RETENTION", "1h")
	t.Setenv("BOBBIN_MONTHLY_LIMIT_USD", "-5")
	t.Setenv("BOBBIN_TURN_MAX_COST_USD", "NaN")
	t.Setenv("BOBBIN_TURN_MAX_TOKENS", "-1")
	t.Setenv("BOBBIN_RESERVE_OUTPUT_TOKENS", "1000")
	t.Setenv("OPENAI_BASE_URL", "sk-this-is-a-key")
	t.Setenv("BOBBIN_RATE_LIMIT", "fast")
	t.Setenv("BOBBIN_RATE_BURST", "0")
	t.Setenv("BOBBIN_AUTH_FAILURE_LIMIT", "-1")
	t.Setenv("BOBBIN_TRUSTED_PROXIES", "10.0.0.0/8,proxy")
	_, err := readConfig("worker")
	require.EqualError(t, err, `the configuration is wrong:
  BOBBIN_ADDR: want host:port, got "nowhere"
  BOBBIN_AUTH_FAILURE_LIMIT: want 0, for no limit, or more, got -1
  BOBBIN_EVENT_RETENTION: want at least 24h0m0s, got 23h0m0s
  BOBBIN_HISTORY_ROLL_OVER: want at least 30, got 29
  BOBBIN_KEY_RETENTION: want at least 24h0m0s, got 1h0m0s
  BOBBIN_MONTHLY_LIMIT_USD: want an amount of dollars such as 20 or 12.50, from 0 to 1000000000, got "-5"
  BOBBIN_RATE_BURST: want at least 1, got 0
  BOBBIN_RATE_LIMIT: want a number such as 0.75
  BOBBIN_RESERVE_OUTPUT_TOKENS: want at least BOBBIN_RESERVE_LEAST_OUTPUT_TOKENS, 1024, got 1000
  BOBBIN_TAKE_TIMEOUT: want a duration such as 90s, 5m or 1h30m
  BOBBIN_TRUSTED_PROXIES: want addresses or networks such as 10.0.0.0/8, with commas, got "proxy"
  BOBBIN_TURN_MAX_COST_USD: want an amount of dollars such as 20 or 12.50, from 0 to 1000000000, got "NaN"
  BOBBIN_TURN_MAX_ROUNDS: want at least 1, got 0
  BOBBIN_TURN_MAX_TOKENS: want 0, for no limit, or more, got -1
  BOBBIN_WORKER_STINTS: want a whole number
  DATABASE_URL: want the address of a Postgres database
  OPENAI_BASE_URL: want an http or https address
  TEMPORAL_ADDRESS: want host:port of a Temporal frontend`)
}

func TestReadConfigNeedsNothingForDevAndChat(t *testing.T) {
	clearConfig(t)
	t.Setenv("BOBBIN_ADDR", "127.0.0.1:8080")
	for _, name := range []string{"dev", "chat"} {
		cfg, err := readConfig(name)
		require.NoError(t, err, name)
		require.Equal(t, 2*time.Second, cfg.TakeTimeout)
		require.Equal(t, 40, cfg.TurnRounds)
	}
}

func TestListenTakesAnotherPortWhereTheConfiguredOneIsInUse(t *testing.T) {
	d := &dev{cfg: config{Addr: "127.0.0.1:0"}}
	first, err := d.listen()
	require.NoError(t, err)
	defer func() { _ = first.Close() }()
	d.cfg.Addr = first.Addr().String()
	second, err := d.listen()
	require.NoError(t, err)
	defer func() { _ = second.Close() }()
	require.NotEqual(t, first.Addr().String(), second.Addr().String())
	require.True(t, loopback(second.Addr()))
}
