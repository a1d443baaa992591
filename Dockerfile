# The router in a container: docs/how-to/container.md says how to run it, and what it is good for.

FROM python:3.13-slim AS build
# Compiles the data path: docs/explanation/compiled.md.
ENV PYPTO_COMPILE=1
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
RUN pip wheel --wheel-dir /wheels .

FROM python:3.13-slim
# tini, as process 1, ends what is orphaned in the container; ssh is how replicas are launched on other machines.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssh-client tini \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels pypto-serving-router
# A name and a home, because ssh wants both.
RUN useradd --uid 10001 --create-home router \
    && install --directory --owner router --mode 0700 /var/lib/pypto-serving-router
USER 10001
WORKDIR /var/lib/pypto-serving-router
ENV PYPTO_ROUTER_PORT=8000
EXPOSE 8000
# Any answer will do: 503 says that no replica is routable, which restarting the router would not mend.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import http.client as h, os; c = h.HTTPConnection('127.0.0.1', int(os.environ['PYPTO_ROUTER_PORT']), timeout=4); c.request('GET', '/health'); c.getresponse()"]
ENTRYPOINT ["tini", "--", "pypto-serving-router"]
CMD ["--replicas", "/etc/pypto-serving-router/fleet.json"]
