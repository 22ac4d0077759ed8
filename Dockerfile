# The agent server. BASE is any image with Python 3.11 or newer; what it lacks of bubblewrap, git and tini comes by apt.
# The build reaches no package index: `make wheels` puts bough and everything that it needs into wheels/ before.
ARG BASE=python:3.13-slim
FROM ${BASE} AS build
COPY wheels /wheels
# The installer comes as a wheel too: not every base has one that makes environments.
RUN python3 -m venv --without-pip /opt/bough \
    && /opt/bough/bin/python "$(ls /wheels/pip-*.whl)/pip" install --no-cache-dir --no-index --find-links /wheels \
       "bough[server,postgres,otel]"

FROM ${BASE}
RUN for program in bwrap git tini; do command -v $program >/dev/null || missing=yes; done \
    && if [ -n "$missing" ]; then \
         apt-get update && apt-get install -y --no-install-recommends bubblewrap git tini && rm -rf /var/lib/apt/lists/*; \
       fi \
    && echo "bough:x:10001:10001::/data:/bin/sh" >>/etc/passwd && echo "bough:x:10001:" >>/etc/group \
    && install -d -o 10001 -g 10001 /data /work
COPY --from=build /opt/bough /opt/bough
ENV PATH=/opt/bough/bin:$PATH BOUGH_HOME=/data BOUGH_SERVER_ROOT=/work PYTHONUNBUFFERED=1
USER 10001
VOLUME ["/data", "/work"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/alive', timeout=2)"]
# Without a key it refuses to listen on all addresses: make one first, see docs/how-to/deploy.md.
ENTRYPOINT ["tini", "--"]
CMD ["bough", "serve", "--host", "0.0.0.0", "--port", "8000"]
