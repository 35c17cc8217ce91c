# An image with shmppo, whose wheel is built, installed, and tested by the script that .ci/run executes.
#
#     docker build --tag shmppo .
#     docker run --shm-size 1g --volume "$PWD/runs:/runs" shmppo train
#
# pip installs torch with its libraries for GPUs. --build-arg PIP_EXTRA_INDEX_URL=URL names an index with smaller builds.
FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
ARG PIP_EXTRA_INDEX_URL
WORKDIR /shmppo
COPY pyproject.toml setup.py setup.cfg MANIFEST.in README.md LICENSE ./
COPY .ci/package .ci/
COPY shmppo shmppo
RUN .ci/package /dist
WORKDIR /
ENTRYPOINT ["shmppo"]
