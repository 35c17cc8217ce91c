#!/bin/bash
# Several machines under SLURM: sbatch examples/cluster/slurm.sh
# One rank per task, each with workers of its own. Two minutes before the time limit, or when the job is pre-empted, the
# ranks save and end with code 0, and the job goes back into the queue, to go on from there.
#SBATCH --job-name=shmppo
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -u
export RUN_DIR=${RUN_DIR:-$HOME/runs/halfcheetah-4x16}  # on a file system that all nodes see
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=29500
# export GLOO_SOCKET_IFNAME=ib0  # where the hosts' names do not lead to the network that is to be used

if [ -e "$RUN_DIR/checkpoint.pt" ]; then
    flags="--resume $RUN_DIR"
else
    flags="--run-dir $RUN_DIR --env HalfCheetah-v5 --num-envs 64 --total-steps 100000000"
fi

# srun starts the ranks itself: the signal then reaches them, with no launcher between. exec: the rank is the task.
srun --kill-on-bad-exit=1 bash -c '
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=1
    exec python -m shmppo.train --quiet '"$flags" &
step=$!
stopped=
# One rank is enough: it tells the others.
trap 'stopped=1; scancel --signal=USR1 "$SLURM_JOB_ID.0"' USR1 TERM
wait "$step"
[ -n "$stopped" ] && wait "$step"
code=$?
[ -n "$stopped" ] && [ "$code" -eq 0 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
