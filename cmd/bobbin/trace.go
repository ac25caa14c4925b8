package main

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"bobbin/tracing"
)

// flushTimeout is how long the end of a process waits for its last traces to be taken.
const flushTimeout = 3 * time.Second

// traces begins to send traces where there is an address for them. The exporters and the provider read the other OTEL_
// variables by themselves. The function that it returns sends what is left, and must be called.
func traces(ctx context.Context, cfg config, process string) (end func(), err error) {
	if cfg.TraceEndpoint == "" {
		return func() {}, nil
	}
	client := otlptracehttp.NewClient()
	if cfg.TraceProtocol == "grpc" {
		client = otlptracegrpc.NewClient()
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, err
	}
	res, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "bobbin-"+process), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	p := trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(res), trace.WithIDGenerator(tracing.IDs{}))
	otel.SetTracerProvider(p)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { slog.Warn("traces not sent", "error", err) }))
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		defer cancel()
		_ = p.Shutdown(ctx) // the error handler has it
	}, nil
}
