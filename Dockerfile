# One image, one program: `docker run -p 127.0.0.1:9092:9092 -p 127.0.0.1:8070:8070 --stop-timeout 100 forebay` is an embedded broker, docker-compose.yml makes three that share their stores.
FROM python:3.11-slim-bookworm AS build
RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.8
ENV UV_PROJECT_ENVIRONMENT=/opt/forebay UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
WORKDIR /source
# Dependencies first: they change less often than the source, and a layer of their own is kept.
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-default-groups --no-install-project
COPY forebay forebay
COPY broker broker
COPY process process
COPY storage storage
COPY compactor compactor
COPY runtime runtime
COPY spark spark
RUN uv sync --frozen --no-default-groups --no-editable

FROM python:3.11-slim-bookworm
COPY --from=build /opt/forebay /opt/forebay
# The allocator needs no MALLOC_* here: process.malloc sets the same itself.
ENV PATH=/opt/forebay/bin:$PATH PYTHONUNBUFFERED=1
# What listens on the container's loopback cannot be reached from outside. All four stand until a variable or --set says otherwise: a file is weaker.
ENV FOREBAY_KAFKA__LISTENERS=PLAINTEXT://0.0.0.0:9092 FOREBAY_KAFKA__ADVERTISED_LISTENERS=PLAINTEXT://localhost:9092
ENV FOREBAY_HTTP__LISTEN=0.0.0.0:8070 FOREBAY_HTTP__INSECURE=true
# Embedded mode keeps its data in ./forebay-data: mount a volume on /data to keep it longer than the container.
RUN useradd --uid 10001 --create-home --home-dir /data forebay
USER 10001
WORKDIR /data
EXPOSE 9092 8070
# Whether the process lives, not whether the stores do: an orchestrator that ends an unhealthy container would end every broker in an outage.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=60s CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['FOREBAY_HTTP__LISTEN'].rpartition(':')[2] + '/healthz', timeout=3)"]
ENTRYPOINT ["forebay"]
CMD ["serve"]
