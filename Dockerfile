# Covey on a CPU, as a user without rights, from Debian's packages.
#   docker build --tag covey .
#   docker run --rm covey list methods
#   docker run --rm --volume covey-runs:/work covey run --rounds 3
# PyTorch's build with CUDA is several gigabytes; docs/install.md says how to get the one for CPUs.

FROM debian:bookworm-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/covey
# An index of packages beside pip's own, such as PyTorch's with the builds for CPUs.
ARG PIP_EXTRA_INDEX_URL
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN /opt/covey/bin/pip install --no-cache-dir --constraint constraints.txt '.[report,serve]'

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 covey \
    && install --directory --owner covey --group covey /work
COPY --from=build /opt/covey /opt/covey
ENV PATH=/opt/covey/bin:$PATH
USER covey
WORKDIR /work
EXPOSE 8484
ENTRYPOINT ["covey"]
CMD ["--help"]
