# The operator's image; it carries kubectl-specdecode too.
#
#   docker build -t specdecode-operator .          (or: buildah build ..., or: make image)
#
# The base needs Python 3.11 or later as python3, and its venv module in the stage that builds.
ARG BASE=docker.io/library/python:3.11-slim
ARG BUILD_BASE=${BASE}

FROM ${BUILD_BASE} AS build
# A file with pip's settings, such as an index of your own, may be given as the secret "pip".
RUN python3 -m venv /opt/specdecode
WORKDIR /src
COPY requirements/operator.txt requirements/operator.txt
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/specdecode/bin/pip install --no-cache-dir --no-compile --require-hashes -r requirements/operator.txt
COPY pyproject.toml README.md ./
COPY operator operator
# setuptools, which builds the package, stays in this stage.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv /opt/builder && \
    /opt/builder/bin/pip install --no-cache-dir "setuptools>=80" wheel && \
    /opt/builder/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /opt/wheels . && \
    /opt/specdecode/bin/pip install --no-cache-dir --no-compile --no-deps --no-index /opt/wheels/*.whl
# Bytecode of what is used alone, since a read-only root can't keep any: all of it would be a third of the image.
RUN cd /opt/specdecode && \
    rm -rf bin/pip* lib/python3*/site-packages/pip lib/python3*/site-packages/pip-* \
           lib/python3*/site-packages/setuptools lib/python3*/site-packages/setuptools-* && \
    find lib -type d -name tests -prune -exec rm -rf {} + && \
    find lib -type d -name __pycache__ -prune -exec rm -rf {} + && \
    bin/specdecode-operator --version && \
    bin/python -c "import specdecode.main, specdecode.cli.main, specdecode.cli.online, specdecode.cli.validate, specdecode.cli.render, specdecode.cli.analyze"

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="specdecode-operator" \
      org.opencontainers.image.description="Kubernetes operator for tuned multi-token-prediction deployments of vLLM" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/specdecode /opt/specdecode
ENV PATH=/opt/specdecode/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, by which kubelet can tell that it isn't root.
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["/opt/specdecode/bin/specdecode-operator"]
