# headwise on a CPU. From the root of the repository:
#   docker build -f docker/cpu.Dockerfile -t headwise .
#   mkdir -p runs          # of the user with id 1000, as which the container runs; otherwise chmod a+w runs
#   docker run --rm -v "$PWD/runs:/home/headwise/runs" headwise score smollm2 ioi -n 16 --out runs/ioi
FROM python:3.11-slim

RUN pip install --no-cache-dir uv==0.13.8 && useradd --create-home --uid 1000 headwise

WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY docs docs
RUN uv pip install --system --no-cache --torch-backend cpu --constraint constraints.txt '.[explore]'

USER 1000
WORKDIR /home/headwise
# Weights are kept here; mount a volume to keep them between containers.
ENV HEADWISE_CACHE=/home/headwise/.cache/headwise
ENTRYPOINT ["headwise"]
CMD ["--help"]
