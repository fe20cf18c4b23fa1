# The image of `make image`, for those who build with Docker: the same binary, files and user. Its labels
# have no version; `millrace version` says it, and `docker build --label` adds what you need.
#
#   docker build --tag millrace:local .

FROM --platform=$BUILDPLATFORM golang:1.26.10 AS build
ARG TARGETOS TARGETARCH
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    make binary PLATFORMS=$TARGETOS/$TARGETARCH DIST=/dist \
    && cd packaging && GOWORK=off go run ./image -root /dist/root /dist/$TARGETOS-$TARGETARCH/millrace

FROM scratch
COPY --from=build /dist/root /
LABEL org.opencontainers.image.title="millrace" \
      org.opencontainers.image.description="Event pipeline: Kafka in, Redis Streams to spread the work, and a ledger of payouts" \
      org.opencontainers.image.url="https://github.com/millrace-io/millrace" \
      org.opencontainers.image.source="https://github.com/millrace-io/millrace" \
      org.opencontainers.image.documentation="https://github.com/millrace-io/millrace/tree/main/docs" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/usr/bin
USER 65532:65532
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/millrace"]
CMD ["run"]
