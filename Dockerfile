# The agent server. BASE is any image with Python 3.11 or newer and apt.
ARG BASE=python:3.13-slim
FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python3 -m venv /opt/bough && /opt/bough/bin/pip install --no-cache-dir ".[server,postgres,otel]"

FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap git tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home bough \
    && install -d -o bough -g bough /data /work
COPY --from=build /opt/bough /opt/bough
ENV PATH=/opt/bough/bin:$PATH BOUGH_HOME=/data BOUGH_SERVER_ROOT=/work PYTHONUNBUFFERED=1
USER 10001
VOLUME ["/data", "/work"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/alive', timeout=2)"]
# Without a key it refuses to listen on all addresses: make one first, see docs/how-to/deploy.md.
ENTRYPOINT ["tini", "--"]
CMD ["bough", "serve", "--host", "0.0.0.0", "--port", "8000"]
