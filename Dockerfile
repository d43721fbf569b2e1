# Wheels are built where there is a compiler, and installed where there is none.
FROM python:3.11.14-slim-bookworm AS build
# Debian keeps no old versions: a pin would break the build at the next security fix.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
# hnswlib is built from source; by default for this very CPU, which the image may never see again.
# Empty it (--build-arg HNSWLIB_NO_NATIVE=) where the image runs on the machine that builds it.
ARG HNSWLIB_NO_NATIVE=1
WORKDIR /source
COPY pyproject.toml setup.py requirements.lock README.md LICENSE ./
COPY gateway gateway
COPY loadgen loadgen
RUN pip wheel --no-cache-dir --disable-pip-version-check --wheel-dir /wheels \
    --constraint requirements.lock '.[otel]'

FROM python:3.11.14-slim-bookworm
# All of /wheels is pinned by requirements.lock.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --disable-pip-version-check --no-index --find-links /wheels 'hexsage[otel]'
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin hexsage \
    && install --directory --owner hexsage --group hexsage /var/lib/hexsage
USER 10001
WORKDIR /var/lib/hexsage
# Nothing is written but to /var/lib/hexsage and /tmp: the rest may be read-only.
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MPLCONFIGDIR=/tmp \
    HEXSAGE_HOST=0.0.0.0 \
    HEXSAGE_STATE_DIR=/var/lib/hexsage
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8080, timeout=2); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["hexsage"]
CMD ["serve", "--config", "/etc/hexsage/backends.yaml"]
