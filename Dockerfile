# One static binary in an image that holds nothing else. The context is the repository; see .dockerignore.
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
ENV CGO_ENABLED=0 GOWORK=off GOFLAGS=-buildvcs=false GOTOOLCHAIN=local

COPY go.mod go.sum ./
RUN go mod download && go mod verify

COPY . .
# The same sources and VERSION give the same bytes. timetzdata: the time zones are in the binary.
ARG VERSION=dev
RUN go build -trimpath -tags timetzdata -ldflags "-s -w -buildid= -X main.version=${VERSION}" -o /out/bobbin ./cmd/bobbin \
 && install -d -m 0700 /out/data

FROM scratch
ARG VERSION=dev
LABEL org.opencontainers.image.title="Bobbin" org.opencontainers.image.version="${VERSION}"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/bobbin /usr/local/bin/bobbin
# A volume that is mounted here belongs to the user below.
COPY --from=build --chown=65532:65532 /out/data /data
ENV PATH=/usr/local/bin BOBBIN_ADDR=0.0.0.0:8080 BOBBIN_DATA_DIR=/data
USER 65532:65532
EXPOSE 8080
# Whether the process lives; /readyz would have an orchestrator kill an API that still accepts messages while Temporal is away.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["bobbin", "health"]
ENTRYPOINT ["bobbin"]
