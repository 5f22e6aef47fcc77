# autopar on Debian 12: the tools, ap-exec with OpenMPI, and the Python package with JAX.
#   docker build -t autopar .
#   docker run --rm autopar ap-plan llama3-8b --cluster h100-8
FROM debian:12 AS build
WORKDIR /src
COPY . .
RUN scripts/deps && apt-get -y --no-install-recommends install python3 && make -j "$(nproc)" wheel

FROM debian:12
COPY --from=build /src/build/dist/ /tmp/dist/
RUN apt-get update && \
    apt-get -y --no-install-recommends install python3-venv openmpi-bin jq && \
    rm -rf /var/lib/apt/lists/* && \
    python3 -m venv /opt/autopar && \
    /opt/autopar/bin/pip --no-cache-dir install "autopar[jax] @ file://$(ls /tmp/dist/*.whl)" && \
    rm -r /tmp/dist
ENV PATH=/opt/autopar/bin:$PATH
WORKDIR /work
CMD ["ap-plan", "--help"]
