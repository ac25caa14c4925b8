package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	uiserver "github.com/temporalio/ui-server/v2/server"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	uioptions "github.com/temporalio/ui-server/v2/server/server_options"
	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/temporal"
)

const (
	clusterName = "active"
	// clusterID is written into the store at its first start and must stay.
	clusterID = "00000000-0000-4000-8000-000000000001"
)

// server is a running Temporal server and its UI.
type server struct {
	temporal temporal.Server
	ui       *uiserver.Server // nil: headless
	store    *store
}

// start brings everything up and returns when the frontend listens.
func start(o *options) (_ *server, err error) {
	if err := checkPorts(o); err != nil {
		return nil, err
	}
	logger := newLogger(o)
	st, err := openStore(o, logger)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			st.close()
		}
	}()
	if err := prepareNamespaces(st.main, o); err != nil {
		return nil, err
	}
	cfg, hosts, err := serverConfig(o, st)
	if err != nil {
		return nil, err
	}
	srv, err := temporal.NewServer(
		temporal.WithConfig(cfg), temporal.ForServices(temporal.DefaultServices), temporal.WithStaticHosts(hosts),
		temporal.WithLogger(logger), temporal.WithDynamicConfigClient(settings(o)))
	if err != nil {
		return nil, fmt.Errorf("make Temporal server: %w", err)
	}
	if err := srv.Start(); err != nil {
		return nil, fmt.Errorf("start Temporal server: %w", err)
	}
	s := &server{temporal: srv, store: st}
	if o.uiPort != 0 {
		s.ui = newUI(o)
		go func() { _ = s.ui.Start() }() // it ends the process itself when it fails
	}
	return s, nil
}

// stop ends the server in order, unless it takes longer than stopLimit or
// another signal comes.
func (s *server) stop(again <-chan os.Signal) error {
	done := make(chan error, 1)
	go func() {
		if s.ui != nil {
			s.ui.Stop()
		}
		err := s.temporal.Stop()
		s.store.close()
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("stop Temporal server: %w", err)
		}
		return nil
	case <-time.After(stopLimit):
		return fmt.Errorf("stop took longer than %v; broken off", stopLimit)
	case <-again:
		return fmt.Errorf("stop broken off by a second signal")
	}
}

func newLogger(o *options) log.Logger {
	if o.logLevel == "never" {
		return log.NewNoopLogger()
	}
	format := o.logFormat
	if format != "json" {
		format = "console"
	}
	return log.NewZapLogger(log.BuildZapLogger(log.Config{Level: o.logLevel, Format: format}))
}

// serverConfig is what a production cluster has in its YAML file. All four
// services listen on ports of o.ip and know each other from a fixed list.
func serverConfig(o *options, st *store) (*config.Config, map[primitives.ServiceName]static.Hosts, error) {
	cfg := &config.Config{
		Persistence: st.persistence(),
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        clusterName,
			CurrentClusterName:       clusterName,
			ClusterInformation: map[string]cluster.ClusterInformation{
				clusterName: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: o.address(), ClusterID: clusterID},
			},
		},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},
		PublicClient:        config.PublicClient{HostPort: o.address()},
		Services:            map[string]config.Service{},
	}
	cfg.Global.Membership = config.Membership{MaxJoinDuration: 30 * time.Second, BroadcastAddress: o.ip}
	cfg.Archival.History.State, cfg.Archival.Visibility.State = "disabled", "disabled"
	cfg.NamespaceDefaults.Archival.History.State = "disabled"
	cfg.NamespaceDefaults.Archival.Visibility.State = "disabled"

	free, err := freePorts(o.ip, 4)
	if err != nil {
		return nil, nil, err
	}
	frontend := config.RPC{GRPCPort: o.port, HTTPPort: o.httpPort, BindOnIP: o.ip}
	if frontend.HTTPPort == 0 {
		frontend.HTTPPort = free[3]
	}
	rpc := map[primitives.ServiceName]config.RPC{
		primitives.FrontendService: frontend,
		primitives.HistoryService:  {GRPCPort: free[0], BindOnIP: o.ip},
		primitives.MatchingService: {GRPCPort: free[1], BindOnIP: o.ip},
		primitives.WorkerService:   {GRPCPort: free[2], BindOnIP: o.ip},
	}
	hosts := map[primitives.ServiceName]static.Hosts{}
	for name, r := range rpc {
		cfg.Services[string(name)] = config.Service{RPC: r}
		hosts[name] = static.SingleLocalHost(net.JoinHostPort(o.ip, strconv.Itoa(r.GRPCPort)))
	}
	return cfg, hosts, nil
}

func newUI(o *options) *uiserver.Server {
	return uiserver.NewServer(uioptions.WithConfigProvider(&uiconfig.Config{
		Host:                o.uiIP,
		Port:                o.uiPort,
		TemporalGRPCAddress: o.address(),
		EnableUI:            true,
		DefaultNamespace:    o.namespaces[len(o.namespaces)-1],
		HideLogs:            true,
		DisableNewsFetch:    true,
		CORS:                uiconfig.CORS{CookieInsecure: true}, // plain HTTP on loopback
	}))
}
