# The control plane without root and without build tools.
#   docker build -t gpuplane .
#   docker run --init -p 127.0.0.1:7070:7070 -v gpuplane:/var/lib/gpuplane gpuplane
# `--init` reaps what ended jobs leave behind. Jobs of the cluster `local` run inside the container
# and end with it; docs/install.md says more.
FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/gpuplane
WORKDIR /build
COPY requirements/runtime.txt requirements/runtime.txt
RUN /opt/gpuplane/bin/pip install --require-hashes -r requirements/runtime.txt
COPY LICENSE README.md pyproject.toml ./
COPY examples examples
COPY src src
RUN /opt/gpuplane/bin/pip install --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm
RUN groupadd --system --gid 10001 gpuplane \
    && useradd --system --uid 10001 --gid gpuplane --home-dir /var/lib/gpuplane \
        --shell /usr/sbin/nologin gpuplane \
    && install -d -o gpuplane -g gpuplane -m 0700 /var/lib/gpuplane
COPY --from=build /opt/gpuplane /opt/gpuplane
COPY examples /usr/share/gpuplane/examples
ENV PATH=/opt/gpuplane/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GPUPLANE_HOME=/var/lib/gpuplane
USER 10001:10001
WORKDIR /var/lib/gpuplane
VOLUME /var/lib/gpuplane
EXPOSE 7070
HEALTHCHECK --start-period=30s --interval=10s --timeout=5s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7070/health', timeout=4)"]
ENTRYPOINT ["gpuplane"]
# Nothing listens beyond loopback unless told; here loopback is the container's own.
CMD ["up", "--host", "0.0.0.0", "--port", "7070"]
