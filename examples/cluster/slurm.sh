#!/bin/bash
# Train on several machines with SLURM: sbatch examples/cluster/slurm.sh
# Each task is one rank and has its own workers. SLURM sends a signal two minutes before the time limit and when it
# preempts the job. The ranks then write a checkpoint and exit with code 0. The job is requeued and resumes from there.
#SBATCH --job-name=shmppo
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -u
export RUN_DIR=${RUN_DIR:-$HOME/runs/halfcheetah-4x16}  # on a file system that all nodes share
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=29500
# export GLOO_SOCKET_IFNAME=ib0  # set it if the host names do not resolve to the network to use

if [ -e "$RUN_DIR/checkpoint.pt" ]; then
    flags="--resume $RUN_DIR"
else
    flags="--run-dir $RUN_DIR --env HalfCheetah-v5 --num-envs 64 --total-steps 100000000"
fi

# srun starts the ranks directly, and exec makes the rank the task itself. So SLURM's signals reach the ranks.
srun --kill-on-bad-exit=1 bash -c '
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=1
    exec python -m shmppo.train --quiet '"$flags" &
step=$!
stopped=
# The signal stops all ranks, even if only one rank receives it.
trap 'stopped=1; scancel --signal=USR1 "$SLURM_JOB_ID.0"' USR1 TERM
wait "$step"
[ -n "$stopped" ] && wait "$step"
code=$?
[ -n "$stopped" ] && [ "$code" -eq 0 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
